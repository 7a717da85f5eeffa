"""Programs know an error by its code, which never changes and stands at one place; code knows few by their class."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.house.tree import HOUSE, Node, sources

# Those of version 0.1, and whatever came since.
CODES = """
AlreadyUsed AuthenticationFailed BeingFetched BundleUnusable Busy CannotTell CannotWrite GpuShared GpusDoNotMatch
CertificateRefused ConsentNeeded Contradicted Contradiction CutShort Damaged Defect DownloadFailed Drifted FileFaults
ForeignJournal Gone GuestSilent Halted HostKeyRefused HostKeyUnknown ImageRefused ImageUnusable InTheWay KeptAsItIs
KeyRefused KeyUnusable Nameless NeverBegun NeverCame NoDriver NoEngine NoFactsOf NoFileName NoFleet NoGuest NoImageName
NoLinuxKey NoPlan
NoCommonMethod NoPlaybook NoProfile NoRoom NoSession NoSftp NoShell NoSshAccess NoStore NoSuchFile NoSuchImage
NoSuchThing
NobodyThere NotAPlan NotAsShown
NotAsked NotAvailable NotBack NotBegun NotBeside NotBrought NotChosen NotFetched NotForwarded NotFound NotKnown
NetworkUnknown NotListed NotTunnelled
NotOfPath NotPrivate NotReadable NotResolved NotSigned NotTaken NotThere NotThisImage NotVerified NothingAnew
NothingToSign
NothingNamed NothingOfTheKind NothingToSee OneFile OneWay OnlyThere OtherDisk OtherKey OtherKind OtherPath OtherSystem
OtherVersion
OutOfReach Redirected Refused RemoteError SaidTwice SameHost SecretUnreadable SeedUnusable SessionDropped SeveralFiles
SeveralLinuxes SeveralPlans StepFailed Stopped SystemFault TimedOut TooOld Unfinished UnknownCapability UnknownCode
UnknownHost UnknownHostFile UnknownPath UnknownRemedy UnknownRun UnknownSubject Unreachable UnsafeSleep UnusablePlace
WhichLinux WhichVm WrongDocument WrongHost WrongState WrongUsage WslConfigRefused
NoSuchModel NotServingInTime NotStoppedInTime NothingServed OtherProfile SeveralTargets StartFailed UnitMissing
WrongServingFile NoContainers NoRevision NoSuspend NoCriu OldCriu
DisksUnusable NoPartitions NoSuchKernel ShimRefused NotStaged NoXorriso NotRemastered
NoSuchMedia MediaTooOld NotInRelease BmcFailed NotForThisHost FactMissing MediaThere NotPrepared DiskUnfit NotTyped
BmcUnusable MediaAddress NoDrive NoRedfish OtherMachine
SavedUnusable ArchiveNotBeside
NotInPods ForOneHost OpenToAll OpenToOthers SharedValue
MirrorConflict
NotLocked NoWheel WhichPython LockUnreadable NoPackages NotSignedByThem
NoPciDriver NoRecipe
NotReplaced OfAnotherMachine
NotSwitched FirmwareIgnored NotInstalled NotOffered NotSealed NoSystem NotByHand
CatalogueUnusable
NotAdministrator NothingFits OtherModel SeveralHosts DiskTooSmall NoInternet
AlreadyNode NotANode NoRelease ReleaseRefused SpansNodes SwapInCluster JoinsBehindNat
NoPublicHalf KeyLost KeysMadeMeanwhile
NoApiKey NoPrompt BrokenOff ApiKeyRefused RateLimited NotCompleted
NotNow EndpointSilent CertificateUnknown NoWayThere WhichHost NothingHere NoSuchHost
FleetNotEdited NobodyTypes HostKeyUnconfirmed NoSshServer HostNotReady HostThere NotAnAccount PortTaken
LongPrompt NotAKey UnfitEntry UnfitName NotInFleet
KeyExists NoSuchKey KeyRevoked
NoYield NotYielded NothingToWatch
NoModelFolder NoStandardInput NotAModel NotPacked NoWeights NotStarted NoPacker EmptyText
"""


FAMILIES = {"WinhostError", "UsageError", "RefusedError", "DriftError"}  # one for each exit code


MAKERS = {"interrupted"}
"""Methods that make an error from the same arguments as its class."""


def every(kind: type[Node]) -> Iterator[Node]:
    for file in sources(HOUSE):
        yield from file.every(kind)


@cache
def error_classes() -> dict[str, ast.ClassDef]:
    """All that derive from WinhostError, by name."""
    classes = {node.name: node for node in every(ast.ClassDef)}
    found: dict[str, ast.ClassDef] = {}
    names = {"WinhostError"}
    while names:
        found |= {name: classes[name] for name in names}
        names = {name for name, node in classes.items() if {*map(last_name, node.bases)} & names}
    return found


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_of_super(function: ast.expr) -> bool:
    return last_name(function) == "__init__" and ast.unparse(function) == "super().__init__"


def defaults(parameters: ast.arguments) -> Iterator[ast.expr | None]:
    """Of a parameter named `code`."""
    plain = [*parameters.posonlyargs, *parameters.args]
    late = zip(plain[len(plain) - len(parameters.defaults) :], parameters.defaults, strict=True)
    named = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    yield from (value for parameter, value in (*late, *named) if parameter.arg == "code")


def codes() -> Iterator[str]:
    """Whatever is given as a code: first to a class of errors, by name, or as the default of a parameter."""
    errors = error_classes()
    given: list[ast.expr | None] = []
    for node in every(ast.Call):
        if last_name(node.func) in {*errors, *MAKERS} or is_of_super(node.func):
            given += node.args[:1]
            given += [each.value for each in node.keywords if each.arg == "code"]
    for error in every(ast.ClassDef):
        if error.name in errors:
            parameters = (each for each in ast.walk(error) if isinstance(each, ast.arguments))
            given += [default for each in parameters for default in defaults(each)]
    named = (each.value for each in given if isinstance(each, ast.Constant))
    yield from (name for name in named if isinstance(name, str) and name.isidentifier())


def caught() -> Iterator[str]:
    """Names that stand where something is caught or recognised: neither called, derived from nor annotated with."""
    elsewhere = {id(node.func) for node in every(ast.Call)}
    elsewhere |= {id(base) for node in every(ast.ClassDef) for base in node.bases}
    hints = [node.returns for node in every(ast.FunctionDef)]
    hints += [node.annotation for kind in (ast.AnnAssign, ast.arg) for node in every(kind)]
    elsewhere |= {id(part) for hint in hints if hint for part in ast.walk(hint)}
    yield from (node.id for node in every(ast.Name) if id(node) not in elsewhere)


def test_every_code_is_used_at_one_place_and_known() -> None:
    assert Counter(codes()) == Counter(CODES.split())


def test_an_error_has_a_class_where_something_catches_it() -> None:
    assert set(error_classes()) - FAMILIES <= set(caught())
