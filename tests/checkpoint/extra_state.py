"""Modules that keep more than parameters and buffers."""

import torch


class Scaled(torch.nn.Linear):
    """A layer that keeps a count and a table outside its parameters."""

    def __init__(self):
        super().__init__(2, 2)
        self.count, self.table = 0, torch.zeros(3)

    def get_extra_state(self):
        return {"count": self.count, "table": self.table}

    def set_extra_state(self, extra):
        self.count, self.table = extra["count"], extra["table"]


class Pickled(torch.nn.Module):
    """A layer whose extra state is one tensor of bytes of any length, as of some quantized layers."""

    def __init__(self):
        super().__init__()
        self.text = ""

    def get_extra_state(self):
        return torch.tensor(list(f"<{self.text}>".encode()), dtype=torch.uint8)

    def set_extra_state(self, extra):
        text = bytes(extra.tolist()).decode()
        assert (text[0], text[-1]) == ("<", ">")
        self.text = text[1:-1]


def layers(count=0, text=""):
    model = torch.nn.ModuleDict({"scaled": Scaled(), "pickled": Pickled()})
    model["scaled"].count, model["pickled"].text = count, text
    model["scaled"].table += count
    return model


def extra_of(model):
    return model["scaled"].count, model["scaled"].table.tolist(), model["pickled"].text


def copying(module: torch.nn.Module) -> torch.nn.Module:
    """A module whose state is a copy, as that of FSDP in mode FULL_STATE_DICT."""
    module._register_state_dict_hook(
        lambda module, state, *rest: state.update({name: value.clone() for name, value in state.items()})
    )
    return module
