"""From stored results to a summary: pairing, statistics and cost, task by task."""

from collections import defaultdict

from switch_ema.bench.config import CompareConfig
from switch_ema.bench.plan import Cell, make_plan, methods_of
from switch_ema.bench.results import Results
from switch_ema.bench.stats import Curves, MethodResult, compare
from switch_ema.bench.summary import ComparisonSummary, Cost, TaskSummary
from switch_ema.bench.task import Metric
from switch_ema.bench.tasks import load_task_class

FINISHED = ("done", "diverged")


def summarize(config: CompareConfig, results: Results, name: str) -> ComparisonSummary:
    """Summarise what has been trained so far."""
    meta = results.meta()
    environment = {
        key.removeprefix("environment."): value
        for key, value in meta.items()
        if key.startswith("environment.")
    }
    tasks = [_summarize_task(config, results, task) for task in config.tasks]
    started = [task for task in tasks if task.results[task.metrics[0].name]]
    return ComparisonSummary(name, started, config.to_json(), environment)


def _summarize_task(config: CompareConfig, results: Results, task: str) -> TaskSummary:
    task_class, spec = load_task_class(task)
    recipe = config.recipe_for(task_class.recipe_for(spec.options))
    labels = [method.label for method in methods_of(config, recipe)]
    cells = [cell for cell in make_plan(config) if cell.task == task]
    statuses = results.statuses()
    finished = [cell for cell in cells if statuses.get(cell.id) in FINISHED]
    curves = _curves(results, finished, task_class.metrics, labels)
    return TaskSummary(
        task=task,
        description=(task_class.__doc__ or "").partition("\n")[0],
        optimizer=config.optimizer or "the task's own optimizer",
        epochs=recipe.epochs,
        metrics=task_class.metrics,
        curves=curves,
        results={
            metric.name: _compare(curves[metric.name], metric, labels[0])
            for metric in task_class.metrics
        },
        costs=_costs(results, finished),
        problems=_problems(results, cells, statuses),
        missing=len(cells) - len(finished),
    )


def _compare(curves: Curves, metric: Metric, baseline: str) -> list[MethodResult]:
    if not curves.get(baseline):
        return []
    better = metric.higher_is_better
    return compare(curves, higher_is_better=better, baseline=baseline)


def _curves(
    results: Results,
    cells: list[Cell],
    metrics: tuple[Metric, ...],
    labels: list[str],
) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Collect values by metric, method and seed, in the order of the methods."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {
        metric.name: {label: {} for label in labels} for metric in metrics
    }
    for cell in cells:
        for method, seed, metric, values in results.curves(cell):
            found[metric][method][seed] = values
    return {
        metric: {label: seeds for label, seeds in by_method.items() if seeds}
        for metric, by_method in found.items()
    }


def _costs(results: Results, cells: list[Cell]) -> list[Cost]:
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.methods].append(cell)
    costs = []
    for methods, members in groups.items():
        rows = [results.cell(cell) for cell in members]
        seeds = sum(len(cell.seeds) for cell in members)
        train, evaluate = (
            sum(float(row[key]) for row in rows) / seeds
            for key in ("train_seconds", "evaluate_seconds")
        )
        memory = max(float(row["memory_mb"]) for row in rows)
        costs.append(Cost(methods, seeds, train, evaluate, memory))
    return costs


def _problems(
    results: Results, cells: list[Cell], statuses: dict[str, str]
) -> list[str]:
    problems = []
    for cell in cells:
        status = statuses.get(cell.id, "done")
        if status != "done":
            problems.append(f"{cell}: {status}, {results.cell(cell)['message']}.")
    return problems
