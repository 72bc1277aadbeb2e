"""ConvLSTM and PredRNN: recurrent frame-by-frame prediction.

Patches of 4 by 4 pixels become channels. At each step the network sees a frame and
predicts the next. Sizes follow OpenSTL.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

_PATCH = 4


class Recurrent(nn.Module, ABC):
    """Predicts each next frame from a frame and a state.

    Args:
        widths: Channels of each layer.
        channels: Channels of a frame.
    """

    def __init__(self, widths: tuple[int, ...], channels: int) -> None:
        super().__init__()
        self.widths, self.patch_channels = widths, _PATCH**2 * channels
        self.readout = nn.Conv2d(widths[-1], self.patch_channels, 1, bias=False)

    @abstractmethod
    def start(self, patches: Tensor) -> Any:
        """Return the initial state; the first frame gives the shape."""

    @abstractmethod
    def advance(self, patches: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the features of the last layer and the next state."""

    def forward(self, clips: Tensor, forced: Tensor | None = None) -> Tensor:
        """Predict frames 2 to 20 of clips.

        Args:
            clips: batch x 20 x channels x side x side, or the first 10 frames alone.
            forced: Which of the true frames 11 to 19 the network sees, as booleans
                batch x 9; otherwise it sees its own prediction. None for none.

        Returns:
            batch x 19 x channels x side x side.
        """
        seen = 10
        side = clips.shape[-1]
        frames = pixel_unshuffle(clips.flatten(0, 1), _PATCH)
        frames = frames.view(*clips.shape[:2], *frames.shape[1:])
        state = self.start(frames[:, 0])
        predicted: list[Tensor] = []
        for step in range(2 * seen - 1):
            if step < seen:
                inputs = frames[:, step]
            else:
                inputs = predicted[-1]
                if forced is not None:
                    chosen = forced[:, step - seen, None, None, None]
                    inputs = torch.where(chosen, frames[:, step], inputs)
            features, state = self.advance(inputs, state)
            predicted.append(self.readout(features))
        drawn = pixel_shuffle(torch.stack(predicted, 1).flatten(0, 1), _PATCH)
        return drawn.view(len(clips), 2 * seen - 1, -1, side, side)


def _zeros(patches: Tensor, width: int) -> Tensor:
    return patches.new_zeros(len(patches), width, *patches.shape[2:])


class ConvLSTM(Recurrent):
    """LSTM with convolutions instead of matrix products (Shi et al., 2015).

    Args:
        widths: Channels of each layer.
        kernel: Size of the convolutions.
        channels: Of a frame.
        unused: Whether each cell has the two convolutions that OpenSTL's cell defines
            but never calls, to match the published number of parameters.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        kernel: int,
        channels: int = 1,
        unused: bool = False,
    ) -> None:
        super().__init__(widths, channels)
        inputs = (self.patch_channels, *widths[:-1])
        self.cells = nn.ModuleList(
            _ConvLSTMCell(before, width, kernel, unused)
            for before, width in zip(inputs, widths, strict=True)
        )

    def start(self, patches: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return zero hidden and cell states for each layer."""
        zeros = [_zeros(patches, width) for width in self.widths]
        return [(zero, zero) for zero in zeros]

    def advance(
        self, patches: Tensor, state: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run the layers in turn."""
        features, following = patches, []
        for cell, before in zip(self.cells, state, strict=True):
            features, memory = cell(features, *before)
            following.append((features, memory))
        return features, following


class _ConvLSTMCell(nn.Module):
    def __init__(self, inputs: int, width: int, kernel: int, unused: bool) -> None:
        super().__init__()
        self.see = _convolution(inputs, 4 * width, kernel)
        self.recall = _convolution(width, 4 * width, kernel)
        if unused:
            self.unused = nn.ModuleList(
                [
                    _convolution(2 * width, width, kernel),
                    _convolution(2 * width, width, 1),
                ]
            )

    def forward(
        self, seen: Tensor, hidden: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = self.see(seen) + self.recall(hidden)
        enter, keep, new, leave = gates.chunk(4, 1)
        memory = keep.sigmoid() * memory + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * memory.tanh(), memory


class PredRNN(Recurrent):
    """Spatio-temporal LSTM layers with one shared memory.

    Besides each layer's memory, the shared one passes from layer to layer, and from the
    last layer to the first of the next step (Wang et al., 2017).

    Args:
        widths: Channels of each layer; all equal, since the memory is shared.
        kernel: Size of the convolutions.
        channels: Of a frame.
    """

    def __init__(self, widths: tuple[int, ...], kernel: int, channels: int = 1) -> None:
        super().__init__(widths, channels)
        if len(set(widths)) > 1:
            raise ValueError(f"widths must be equal, got {widths}.")
        inputs = (self.patch_channels, *widths[:-1])
        self.cells = nn.ModuleList(
            _SpatioTemporalCell(before, width, kernel)
            for before, width in zip(inputs, widths, strict=True)
        )

    def start(self, patches: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return two zero states for each layer, and a zero shared memory."""
        zeros = [_zeros(patches, width) for width in self.widths]
        return [(zero, zero) for zero in zeros], zeros[0]

    def advance(
        self, patches: Tensor, state: tuple[list[tuple[Tensor, Tensor]], Tensor]
    ) -> tuple[Tensor, tuple[list[tuple[Tensor, Tensor]], Tensor]]:
        """Run the layers in turn, passing the shared memory through them."""
        layers, shared = state
        features, following = patches, []
        for cell, before in zip(self.cells, layers, strict=True):
            features, memory, shared = cell(features, *before, shared)
            following.append((features, memory))
        return features, (following, shared)


class _SpatioTemporalCell(nn.Module):
    def __init__(self, inputs: int, width: int, kernel: int) -> None:
        super().__init__()
        self.see = _convolution(inputs, 7 * width, kernel)
        self.recall = _convolution(width, 4 * width, kernel)
        self.share = _convolution(width, 3 * width, kernel)
        self.leave = _convolution(2 * width, width, kernel)
        self.join = _convolution(2 * width, width, 1)

    def forward(
        self, seen: Tensor, hidden: Tensor, memory: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        *own, enter_2, keep_2, new_2, leave_seen = self.see(seen).chunk(7, 1)
        *recalled, leave_recalled = self.recall(hidden).chunk(4, 1)
        enter, keep, new = (a + b for a, b in zip(own, recalled, strict=True))
        shares = self.share(shared).chunk(3, 1)
        seen_2 = (enter_2, keep_2, new_2)
        enter_2, keep_2, new_2 = (a + b for a, b in zip(seen_2, shares, strict=True))
        # A forget bias of 1 makes both memories persist initially.
        memory = (keep + 1).sigmoid() * memory + enter.sigmoid() * new.tanh()
        shared = (keep_2 + 1).sigmoid() * shared + enter_2.sigmoid() * new_2.tanh()
        both = torch.cat([memory, shared], 1)
        leave = (leave_seen + leave_recalled + self.leave(both)).sigmoid()
        return leave * self.join(both).tanh(), memory, shared


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
