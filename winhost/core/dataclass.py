"""`dataclass`, each of whose methods is generated when it is first used.

The standard decorator compiles six functions for each class as soon as its module is imported, which takes 0.3 ms. A
command imports hundreds of classes, makes instances of a few dozen and compares fewer: compiling the rest was a quarter
of its run time.
"""

import dataclasses
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

_GENERATING = RLock()
_ALWAYS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_METHODS_BY_OPTION = {
    "init": ("__init__",),
    "repr": ("__repr__",),
    "eq": ("__eq__", "__hash__"),
    "order": ("__lt__", "__le__", "__gt__", "__ge__"),
}
_DEFAULTS = {"init": True, "repr": True, "eq": True, "order": False, "frozen": False}
# By name, the options with which the standard decorator generates it and as little else as possible.
# `__dataclass_params__` lists all options, so it takes those of the declaration.
_NO_METHODS = dict.fromkeys(_METHODS_BY_OPTION, False)
_SWITCHES = {name: {**_NO_METHODS, option: True} for option, names in _METHODS_BY_OPTION.items() for name in names}
_SWITCHES |= {name: {**_NO_METHODS, "eq": True, "order": True} for name in _METHODS_BY_OPTION["order"]}
_SWITCHES |= {"__dataclass_fields__": _NO_METHODS, "__match_args__": _NO_METHODS, "__dataclass_params__": {}}
# The names whose value depends on `frozen`. The standard decorator compiles two more functions for a frozen class.
_DEPENDENT_ON_FROZEN = ("__hash__", "__dataclass_params__")


class _Declared:
    """The arguments of the decorator, for the methods that are still to be generated.

    body: the class as it was written, in which the values of fields are not yet replaced by their defaults.
    """

    def __init__(self, cls: type, options: dict[str, bool]) -> None:
        self.cls = cls
        self.options = options
        self.frozen = options.get("frozen", False)
        self.body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}

    def generate(self, name: str) -> None:
        """Generate the pending attribute of this name, and replace fields by their defaults."""
        setattr(self.cls, name, self._initializer() if name == "__init__" else self._generate_with_standard(name))

    def _generate_with_standard(self, name: str) -> Any:
        """Apply the standard decorator to a copy of the class, and return what it generated. Generated methods refer to
        no class, so they work on the original.
        """
        copy: Any = type(self.cls)(self.cls.__name__, self.cls.__bases__, dict(self.body))
        copy.__qualname__ = self.cls.__qualname__
        options = {**self.options, **_SWITCHES[name]}
        if name not in _DEPENDENT_ON_FROZEN and not any(
            hasattr(base, "__dataclass_fields__") for base in self.cls.__mro__[1:]
        ):
            options["frozen"] = False
        dataclasses.dataclass(**options)(copy)
        for field in self.cls.__annotations__:  # its own alone, from 3.10 on; 3.14 keeps none among its vars
            if isinstance(vars(self.cls).get(field), dataclasses.Field):
                if field in vars(copy):
                    setattr(self.cls, field, vars(copy)[field])
                else:
                    delattr(self.cls, field)
        return vars(copy)[name]

    def _initializer(self) -> Any:
        """Compile `__init__` alone. In a frozen class it fills `__dict__`, since `__setattr__` raises."""
        namespace: dict[str, Any] = {"__not_given__": dataclasses.MISSING}
        positional, body = ["self"], ["__fields__ = self.__dict__"]
        keyword_only: list[str] = []
        for field in dataclasses.fields(self.cls):
            name, parameter, value = field.name, field.name, field.name
            if field.default_factory is not dataclasses.MISSING:
                namespace[f"__make_{name}__"] = field.default_factory
                parameter = f"{name}=__not_given__"
                value = f"__make_{name}__()"
                if field.init:
                    value += f" if {name} is __not_given__ else {name}"
            elif field.default is not dataclasses.MISSING:
                namespace[f"__default_{name}__"] = field.default
                parameter = f"{name}=__default_{name}__"
            if field.init:
                (keyword_only if field.kw_only else positional).append(parameter)
            if field.init or field.default_factory is not dataclasses.MISSING:
                body.append(f"__fields__[{name!r}] = {value}" if self.frozen else f"self.{name} = {value}")
        if hasattr(self.cls, "__post_init__"):
            body.append("self.__post_init__()")
        parameters = ", ".join([*positional, *(["*"] if keyword_only else []), *keyword_only])
        exec(f"def __init__({parameters}):\n " + "\n ".join(body), namespace)  # noqa: S102  names of fields, as in the standard one
        initializer = namespace["__init__"]
        initializer.__qualname__, initializer.__module__ = f"{self.cls.__qualname__}.__init__", self.cls.__module__
        return initializer


class _Pending:
    """Stands in a class for an attribute until it is looked up."""

    def __init__(self, name: str, declared: _Declared) -> None:
        self.name = name
        self.declared = declared

    def __get__(self, instance: Any, owner: type) -> Any:
        attributes = vars(self.declared.cls)
        with _GENERATING:
            if attributes[self.name] is self:
                self.declared.generate(self.name)
        generated = attributes[self.name]
        return generated.__get__(instance, owner) if hasattr(generated, "__get__") else generated


def _refuse_set(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN = {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}


def _dataclass(cls: Any = None, /, **options: bool) -> Any:
    """Like `dataclasses.dataclass`, but methods are generated when they are used. Options: init, repr, eq, order,
    frozen, kw_only.
    """

    def declare(cls: type) -> type:
        chosen = {**_DEFAULTS, **options}
        declared = _Declared(cls, options)
        names = [*_ALWAYS, *(name for option, names in _METHODS_BY_OPTION.items() if chosen[option] for name in names)]
        for name in names:
            if name not in vars(cls):
                setattr(cls, name, _Pending(name, declared))
        for name, refuse in _FROZEN.items() if chosen["frozen"] else ():
            setattr(cls, name, refuse)
        return cls

    return declare if cls is None else declare(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # exported, and known to type checkers as what it is
else:
    dataclass = _dataclass
