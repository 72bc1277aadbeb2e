// Draws the figures, in the colours that style.css has for the current scheme.
(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set(); // "task method", as in the legends' data attributes
  const whole = new Set(); // ids of figures whose vertical axis is not cut
  const PRINT_WIDTH = 660; // the text's width on A4 and on US letter
  // Shares of the screen's heights, so that pages are filled; rows need their room.
  const PRINT_CURVE = 0.62;
  const PRINT_ROWS = 0.85;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const faded = (hex, alpha) =>
    `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join()},${alpha})`;
  const place = (figure) => document.getElementById(figure.id);
  const touch = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page

  const PAINT = {
    line: (own) => ({ line: { color: own }, marker: { color: own } }),
    band: (own) => ({ fillcolor: faded(own, 0.16) }),
    dots: (own) => ({ marker: { color: faded(own, 0.7) } }),
    mean: (own) => ({ marker: { color: own }, error_x: { color: own } }),
    bar: () => ({ marker: { color: colour("--bar") } }),
  };

  function painted(trace, task) {
    const { role, colour: index, method } = trace.meta;
    const own = index === undefined ? "" : colour(`--method-${index}`);
    const copy = { ...trace, visible: !hidden.has(`${task} ${method}`) };
    for (const [part, values] of Object.entries(PAINT[role](own))) {
      copy[part] =
        typeof values === "object" ? { ...trace[part], ...values } : values;
    }
    return copy;
  }

  function axis(given) {
    const line = colour("--rule");
    return {
      gridcolor: line,
      zerolinecolor: colour("--ink"),
      zerolinewidth: 1,
      zeroline: false,
      automargin: true,
      fixedrange: touch,
      ...given,
      title: { ...given.title, standoff: 10, font: { size: 13 } },
    };
  }

  function heightOf(figure, printing) {
    if (!printing) return figure.height;
    const share = place(figure).closest(".curve") ? PRINT_CURVE : PRINT_ROWS;
    return Math.round(figure.height * share);
  }

  function layout(figure, printing) {
    const ink = colour("--ink");
    return {
      ...figure.layout,
      ...(printing ? { width: PRINT_WIDTH } : { autosize: true }),
      height: heightOf(figure, printing),
      margin: { l: 8, r: 12, t: 30, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: ink },
      hovermode: "closest",
      hoverlabel: {
        bgcolor: colour("--paper"),
        bordercolor: colour("--muted"),
        font: { family: "system-ui, sans-serif", size: 13, color: ink },
        align: "left",
      },
      modebar: {
        bgcolor: "rgba(0,0,0,0)",
        color: colour("--muted"),
        activecolor: ink,
      },
      showlegend: false,
      dragmode: touch ? false : "zoom",
      uirevision: "keep",
      xaxis: axis(figure.layout.xaxis),
      yaxis: axis({
        ...figure.layout.yaxis,
        ...(whole.has(figure.id) ? { range: null, autorange: true } : {}),
        uirevision: String(whole.has(figure.id)),
      }),
    };
  }

  const download = {
    name: "download",
    title: "Download as SVG",
    icon: Plotly.Icons.camera,
    click: (drawn) =>
      Plotly.downloadImage(
        {
          data: drawn.data,
          layout: { ...drawn.layout, showlegend: true, paper_bgcolor: colour("--paper") },
        },
        { format: "svg", filename: drawn.id, width: 900, height: drawn.layout.height + 60 },
      ),
  };
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [
      touch ? [download] : [download, "zoomIn2d", "zoomOut2d", "resetScale2d"],
    ],
  };

  function draw(figure, printing = false) {
    const target = place(figure);
    target.style.height = `${heightOf(figure, printing)}px`;
    const task = target.closest("[data-task]").dataset.task;
    const traces = figure.traces.map((trace) => painted(trace, task));
    return Plotly.react(target, traces, layout(figure, printing), config);
  }
  const drawAll = (printing) =>
    Promise.all(figures.map((figure) => draw(figure, printing)));

  function toggle(button) {
    const task = button.closest("[data-task]");
    const key = `${task.dataset.task} ${button.dataset.method}`;
    if (!hidden.delete(key)) hidden.add(key);
    const shown = String(!hidden.has(key));
    for (const twin of task.querySelectorAll("button[data-method]")) {
      if (twin.dataset.method === button.dataset.method) twin.ariaPressed = shown;
    }
    for (const figure of figures) {
      const target = place(figure);
      if (task.contains(target) && target.closest(".curve")) draw(figure);
    }
  }

  function toggleAxis(button) {
    const { figure: id } = button.dataset;
    if (!whole.delete(id)) whole.add(id);
    button.ariaPressed = String(whole.has(id));
    draw(figures.find((figure) => figure.id === id));
  }

  for (const button of document.querySelectorAll(".legend button[data-method]")) {
    button.addEventListener("click", () => toggle(button));
  }
  for (const button of document.querySelectorAll(".legend button.whole")) {
    button.addEventListener("click", () => toggleAxis(button));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  addEventListener("beforeprint", () => {
    root.dataset.print = "";
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.dataset.closed = "";
      details.open = true;
    }
    drawAll(true);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    for (const details of document.querySelectorAll("details[data-closed]")) {
      delete details.dataset.closed;
      details.open = false;
    }
    drawAll();
  });
  drawAll().then(() => {
    root.dataset.drawn = "";
  });
})();
