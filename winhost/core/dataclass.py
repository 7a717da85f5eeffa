"""`dataclass`, whose methods are generated when the first of them is used.

The standard decorator compiles six functions for each class as soon as its module is imported, which takes 0.3 ms. A
command imports hundreds of classes and uses a few dozen: compiling the others was a quarter of its run time.
"""

import dataclasses
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

_GENERATING = RLock()
_ALWAYS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_BY_OPTION = {
    "init": ("__init__",),
    "repr": ("__repr__",),
    "eq": ("__eq__",),
    "order": ("__lt__", "__le__", "__gt__", "__ge__"),
}
_DEFAULTS = {"init": True, "repr": True, "eq": True, "order": False, "frozen": False}


class _Pending:
    """Stands in a class for an attribute until any such attribute of that class is looked up."""

    def __init__(self, name: str, declared: type, options: dict[str, bool]) -> None:
        self.name = name
        self.declared = declared
        self.options = options

    def __get__(self, instance: Any, owner: type) -> Any:
        with _GENERATING:
            if vars(self.declared)[self.name] is self:
                _generate(self.declared, self.options)
        generated = vars(self.declared)[self.name]
        return generated.__get__(instance, owner) if hasattr(generated, "__get__") else generated


def _generate(cls: type, options: dict[str, bool]) -> None:
    """Replace what is pending, name by name, so that no other thread ever finds a name missing.

    The standard decorator leaves names alone that a class has. It is applied to a twin, whose methods serve both: they
    refer to no class, but for `__setattr__` and `__delattr__`, which are not pending.
    """
    pending = [name for name, value in vars(cls).items() if isinstance(value, _Pending)]
    left_out = {*pending, *_FROZEN, "__dict__", "__weakref__"}
    twin: Any = type(cls)(cls.__name__, cls.__bases__, {k: v for k, v in vars(cls).items() if k not in left_out})
    twin.__qualname__ = cls.__qualname__
    dataclasses.dataclass(**options)(twin)
    for name in vars(cls).get("__annotations__", {}):
        if isinstance(vars(cls).get(name), dataclasses.Field):
            if name in vars(twin):
                setattr(cls, name, vars(twin)[name])
            else:
                delattr(cls, name)
    for name in pending:
        setattr(cls, name, vars(twin)[name])


def _refuse_set(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN = {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}


def _dataclass(cls: Any = None, /, **options: bool) -> Any:
    """As `dataclasses.dataclass`, later. Of its options: init, repr, eq, order, frozen, kw_only."""

    def declare(cls: type) -> type:
        chosen = {**_DEFAULTS, **options}
        names = [*_ALWAYS, *(name for option, names in _BY_OPTION.items() if chosen[option] for name in names)]
        names += ["__hash__"] * chosen["eq"]
        for name in names:
            if name not in vars(cls):
                setattr(cls, name, _Pending(name, cls, options))
        for name, refuse in _FROZEN.items() if chosen["frozen"] else ():
            setattr(cls, name, refuse)
        return cls

    return declare if cls is None else declare(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # exported, and known to type checkers as what it is
else:
    dataclass = _dataclass
