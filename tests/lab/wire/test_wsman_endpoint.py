"""The real pypsrp client against the lab's endpoint."""

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests.exceptions
from pypsrp.complex_objects import PSInvocationState
from pypsrp.exceptions import AuthenticationError, WinRMTransportError, WSManFaultError
from pypsrp.powershell import PowerShell, RunspacePool
from pypsrp.shell import CommandState, SignalCode
from pypsrp.wsman import SelectorSet, WSMan

from bench.wire import detect
from tests.processes import PATIENCE_S
from winhost.lab.wire.served_host import Moment, Phase, PipelineError, WireTroubles, drop, exceed_quota, refuse
from winhost.lab.wire.wsman import Action
from winhost.lab.wire.wsman_endpoint import Endpoint

USER, PASSWORD = "svc-gpu", "pass word#1"
SHELL_NOT_FOUND = 2150858843


class Machine:
    """A host whose runspaces know a handful of commands."""

    network_epoch = 0

    def __init__(self):
        self.boot = 1
        self.up = True
        self.users = []
        self.work_done = []
        self.started = threading.Event()
        self.release = threading.Event()
        self.ended = threading.Event()

    def accepts_connections(self):
        return self.up

    def open_runspace(self, user):
        self.users.append(user)
        return Memory(self)

    def reboot(self):
        self.boot += 1


class Memory:
    def __init__(self, machine):
        self.machine = machine
        self.script = ""

    def invoke(self, commands, stop):
        (command,) = commands
        if command.is_script:
            self.script = command.text
            return []
        return getattr(self, command.text)(stop, *command.arguments, **command.parameters)

    def close(self):
        pass

    def recall(self, stop):
        return [self.script]

    def repeat(self, stop, text, times):
        return [text * times]

    def work(self, stop, name):
        self.machine.work_done.append(name)
        return [name]

    def count(self, stop, to):
        yield from range(to)

    def wait(self, stop):
        self.machine.started.set()
        released = self.machine.release.wait(PATIENCE_S)
        self.machine.ended.set()
        return [released]

    def wait_for_stop(self, stop):
        self.machine.started.set()
        if stop.wait(PATIENCE_S):
            self.machine.ended.set()
        return []

    def fail(self, stop):
        raise PipelineError("Die VM läuft.", "InvalidState,Test", "InvalidOperation")

    def stumble(self, stop):
        return [1 / 0]


@pytest.fixture
def machine():
    return Machine()


@contextmanager
def serve(machine, **options):
    with Endpoint(machine, {USER: PASSWORD}, **options) as endpoint:
        yield endpoint


def connect(endpoint, *, server="127.0.0.1", **options):
    """A client of the endpoint: by default NTLM with message encryption over HTTP, certificates verified over HTTPS."""
    ssl = endpoint.url.startswith("https:")
    defaults = {
        "port": endpoint.port,
        "username": USER,
        "password": PASSWORD,
        "ssl": ssl,
        "auth": "ntlm",
        "cert_validation": str(endpoint.certificate_path) if ssl else True,
        "no_proxy": True,
    }
    return WSMan(server, **{**defaults, **options})


@contextmanager
def opened(endpoint, **options):
    with connect(endpoint, **options) as connection, RunspacePool(connection) as pool:
        yield pool


def call(pool, cmdlet, /, **parameters):
    shell = PowerShell(pool).add_cmdlet(cmdlet).add_parameters(parameters)
    output = shell.invoke()
    assert not shell.had_errors, [str(error) for error in shell.streams.error]
    return output


def send_script(pool, text):
    PowerShell(pool).add_script(text).invoke()


WAYS_IN = {
    "ntlm, sealed, over HTTP": ({}, {"auth": "ntlm"}),
    "negotiate, sealed, over HTTP": ({}, {"auth": "negotiate"}),
    "ntlm over HTTPS": ({"tls": True}, {"auth": "ntlm"}),
    "ntlm, sealed, over HTTPS": ({"tls": True}, {"auth": "ntlm", "encryption": "always"}),
    "negotiate over HTTPS": ({"tls": True}, {"auth": "negotiate"}),
    "negotiate over HTTPS, by name": ({"tls": True}, {"auth": "negotiate", "server": "localhost"}),
    "basic over HTTPS": ({"tls": True}, {"auth": "basic"}),
    "basic over loopback HTTP": ({}, {"auth": "basic", "encryption": "never"}),
}


@pytest.mark.parametrize(("serving", "client"), WAYS_IN.values(), ids=WAYS_IN.keys())
def test_every_way_in_runs_a_pipeline_as_the_user_who_logged_on(machine, serving, client):
    with serve(machine, **serving) as endpoint, opened(endpoint, **client) as pool:
        assert call(pool, "work", name="x") == ["x"]
    assert machine.users == [USER]
    assert endpoint.unencrypted_bodies == 0


@pytest.mark.parametrize(("serving", "client"), WAYS_IN.values(), ids=WAYS_IN.keys())
def test_a_wrong_password_is_an_authentication_error(machine, serving, client):
    with serve(machine, **serving) as endpoint, pytest.raises(AuthenticationError):
        RunspacePool(connect(endpoint, password="wrong", **client)).open()
    assert machine.users == []


def test_an_unknown_user_is_refused(machine):
    with serve(machine) as endpoint, pytest.raises(AuthenticationError):
        RunspacePool(connect(endpoint, username="nobody")).open()


def test_a_user_of_a_domain_logs_on_with_it_and_not_without(machine):
    with Endpoint(machine, {"CORP\\svc": "p"}) as endpoint:
        with opened(endpoint, username="corp\\SVC", password="p"):
            assert machine.users == ["CORP\\svc"]
        with pytest.raises(AuthenticationError):
            RunspacePool(connect(endpoint, username="svc", password="p")).open()


def test_two_endpoints_keep_their_passwords_apart(machine):
    with Endpoint(machine, {USER: "one"}) as first, Endpoint(machine, {USER: "two"}) as second:
        with opened(first, password="one"), opened(second, password="two"):
            assert machine.users == [USER, USER]
        with pytest.raises(AuthenticationError):
            RunspacePool(connect(second, password="one")).open()


def test_an_untrusted_certificate_is_refused_by_the_client(machine):
    with serve(machine, tls=True) as endpoint, pytest.raises(requests.exceptions.SSLError):
        RunspacePool(connect(endpoint, cert_validation=True)).open()
    assert machine.users == []


@pytest.mark.parametrize("auth", ["ntlm", "negotiate"])
def test_a_client_that_does_not_seal_over_http_is_refused_and_counted(machine, auth):
    with serve(machine) as endpoint:
        with pytest.raises(WinRMTransportError):
            RunspacePool(connect(endpoint, auth=auth, encryption="never")).open()
        assert endpoint.unencrypted_bodies > 0
    assert machine.users == []


def test_answers_and_faults_are_sealed_over_http(machine):
    answers = []
    with serve(machine) as endpoint, opened(endpoint) as pool:
        pool.connection.transport.session.hooks["response"].append(lambda answer, **_: answers.append(answer))
        call(pool, "work", name="secret")
        with pytest.raises(WSManFaultError):
            pool.shell.receive("stdout", command_id="00000000-0000-0000-0000-000000000001")
    assert [answer.status_code for answer in answers[:3]] == [200, 200, 500]
    assert all(answer.headers["Content-Type"].startswith("multipart/encrypted;") for answer in answers)
    assert not any(b"Envelope" in answer.content for answer in answers)


def test_a_runspace_keeps_its_state_from_pipeline_to_pipeline(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool, opened(endpoint) as other:
        send_script(pool, "$x = 1")
        assert call(pool, "recall") == ["$x = 1"]
        assert call(other, "recall") == [""]


def test_a_large_script_arrives_whole(machine):
    script = "# ünicode\n" * 20_000
    with serve(machine) as endpoint, opened(endpoint) as pool:
        send_script(pool, script)
        assert call(pool, "recall") == [script]


@pytest.mark.parametrize("envelope", [153_600, 512_000])
def test_a_large_output_arrives_whole(machine, envelope):
    with serve(machine) as endpoint, opened(endpoint, max_envelope_size=envelope) as pool:
        assert call(pool, "repeat", text="0123456789", times=100_000) == ["0123456789" * 100_000]


def test_a_pipeline_is_done_when_its_last_output_is_fetched_and_not_before(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("repeat").add_parameters({"text": "0123456789", "times": 100_000})
        shell.begin_invoke()
        states, size = [CommandState.RUNNING], 0
        while states[-1] == CommandState.RUNNING:
            state, _, streams = pool.shell.receive("stdout", command_id=shell.id)
            states.append(state)
            size += len(streams["stdout"])
    assert states[-1] == CommandState.DONE
    assert size > 1_000_000


def test_yielded_output_arrives_in_order(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        assert call(pool, "count", to=500) == list(range(500))


def test_parameters_and_arguments_reach_the_host_as_the_client_sent_them(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        assert call(pool, "work", name="7") == ["7"]
        assert call(pool, "work", name=7) == [7]
        PowerShell(pool).add_cmdlet("work").add_argument("by position").invoke()
    assert machine.work_done == ["7", 7, "by position"]


def test_a_pipeline_error_ends_the_pipeline_with_its_record(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("fail")
        assert shell.invoke() == []
        assert shell.state == PSInvocationState.FAILED
        (error,) = shell.streams.error
        assert error.exception.adapted_properties["Message"] == "Die VM läuft."
        assert (error.fq_error, error.category) == ("InvalidState,Test", 7)
        assert call(pool, "work", name="after") == ["after"]


def test_a_bug_of_the_host_fails_the_pipeline_instead_of_hanging_it(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("stumble")
        shell.invoke()
        assert shell.streams.error[0].fq_error == "SimulatedHostFailed"


class ReleasingFaults(WireTroubles):
    """Lets the waiting pipeline go on at the client's third question for output."""

    def __init__(self, machine):
        super().__init__()
        self.machine = machine
        self.questions = 0

    def strike(self, moment):
        if moment == Moment(Action.RECEIVE, Phase.ARRIVED) and self.machine.started.is_set():
            self.questions += 1
            if self.questions == 3:
                self.machine.release.set()


def test_a_pipeline_longer_than_the_operation_timeout_is_asked_again(machine):
    faults = ReleasingFaults(machine)
    with serve(machine, faults=faults) as endpoint, opened(endpoint, operation_timeout=1) as pool:
        shell = PowerShell(pool).add_cmdlet("wait")
        shell.begin_invoke()
        assert machine.started.wait(PATIENCE_S)
        assert shell.end_invoke() == [True]
    assert faults.questions == 3


def test_a_client_that_repeats_its_question_after_a_read_timeout_loses_no_output(machine):
    with serve(machine) as endpoint, opened(endpoint, read_timeout=1, reconnection_backoff=0) as pool:
        endpoint.faults.plan(lambda: time.sleep(2), Action.RECEIVE, Phase.FINISHED)
        assert call(pool, "work", name="slow") == ["slow"]
    assert machine.work_done == ["slow"]


def test_ctrl_c_reaches_the_pipeline(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("wait_for_stop")
        shell.begin_invoke()
        assert machine.started.wait(PATIENCE_S)
        pool.shell.signal(SignalCode.PS_CTRL_C, shell.id)
        shell.end_invoke()
        assert shell.state == PSInvocationState.STOPPED
        assert shell.streams.error[0].fq_error == "PipelineStopped"


def test_a_closed_pipeline_is_gone(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("recall")
        shell.invoke()
        shell.close()
        with pytest.raises(WSManFaultError, match="command identifier that does not exist"):
            pool.shell.receive("stdout", command_id=shell.id)


def test_a_command_that_is_sent_twice_runs_once(machine):
    with serve(machine) as endpoint, opened(endpoint) as pool:
        shell = PowerShell(pool).add_cmdlet("recall")
        shell.invoke()
        with pytest.raises(WSManFaultError, match="in use"):
            pool.shell.command("", arguments=[""], command_id=shell.id)


def test_a_pipeline_goes_on_when_its_client_dies(machine):
    with serve(machine) as endpoint:
        connection = connect(endpoint)
        pool = RunspacePool(connection)
        pool.open()
        PowerShell(pool).add_cmdlet("wait").begin_invoke()
        assert machine.started.wait(PATIENCE_S)
        connection.close()
        machine.release.set()
        assert machine.ended.wait(PATIENCE_S)


def test_a_deleted_shell_stops_its_pipelines(machine):
    with serve(machine) as endpoint:
        with opened(endpoint) as pool:
            PowerShell(pool).add_cmdlet("wait_for_stop").begin_invoke()
            assert machine.started.wait(PATIENCE_S)
        assert machine.ended.wait(PATIENCE_S)


def test_an_answer_may_be_lost_though_the_work_is_done(machine):
    with serve(machine) as endpoint:
        pool = RunspacePool(connect(endpoint))
        pool.open()
        endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
        with pytest.raises(requests.exceptions.ConnectionError):
            call(pool, "work", name="lost")
        assert machine.work_done == ["lost"]
        with opened(endpoint) as pool:
            assert call(pool, "work", name="again") == ["again"]


def test_a_connection_dropped_before_the_command_does_no_work(machine):
    with serve(machine) as endpoint:
        pool = RunspacePool(connect(endpoint))
        pool.open()
        endpoint.faults.plan(drop, Action.COMMAND)
        with pytest.raises(requests.exceptions.ConnectionError):
            call(pool, "work", name="never")
    assert machine.work_done == []


TROUBLES = {
    "401 at the logon": (refuse(401), Action.LOGON, AuthenticationError, None),
    # The client logs on again, and repeats what it had sealed for the logon before.
    "401 in the session": (refuse(401), Action.CREATE, WinRMTransportError, 400),
    "503": (refuse(503), Action.CREATE, WinRMTransportError, 503),
    "too many shells": (exceed_quota, Action.CREATE, WSManFaultError, 2150859173),
}


@pytest.mark.parametrize(("trouble", "action", "error", "code"), TROUBLES.values(), ids=TROUBLES.keys())
def test_a_planned_trouble_strikes_once(machine, trouble, action, error, code):
    with serve(machine) as endpoint:
        endpoint.faults.plan(trouble, action)
        with pytest.raises(error) as caught:
            RunspacePool(connect(endpoint)).open()
        assert getattr(caught.value, "code", None) == code
        with opened(endpoint) as pool:
            assert call(pool, "work", name="x") == ["x"]


def test_a_rebooting_machine_answers_nobody(machine):
    with serve(machine) as endpoint:
        machine.up = False
        with pytest.raises(requests.exceptions.ConnectionError):
            RunspacePool(connect(endpoint)).open()
        machine.up = True
        with opened(endpoint) as pool:
            assert call(pool, "work", name="up") == ["up"]


def test_a_reboot_cuts_a_waiting_client(machine):
    with serve(machine) as endpoint:
        pool = RunspacePool(connect(endpoint, operation_timeout=600, read_timeout=600))
        pool.open()
        shell = PowerShell(pool).add_cmdlet("wait")
        shell.begin_invoke()
        assert machine.started.wait(PATIENCE_S)
        threading.Timer(0.1, machine.reboot).start()
        with pytest.raises(requests.exceptions.ConnectionError):
            shell.end_invoke()
        assert not machine.ended.is_set()
        machine.release.set()


def test_a_shell_is_gone_after_a_reboot(machine):
    with serve(machine) as endpoint:
        pool = RunspacePool(connect(endpoint))
        pool.open()
        machine.reboot()
        assert receive_code(endpoint, pool) == SHELL_NOT_FOUND


def test_a_shell_belongs_to_its_user(machine):
    with Endpoint(machine, {USER: PASSWORD, "other": "o"}) as endpoint, opened(endpoint) as pool:
        assert receive_code(endpoint, pool, username="other", password="o") == SHELL_NOT_FOUND


def receive_code(endpoint, pool, **options):
    """The fault that a new connection gets when it asks for output of the pool's shell."""
    selectors = SelectorSet()
    selectors.add_option("ShellId", pool.shell.id)
    pool.shell.wsman, former = connect(endpoint, **options), pool.shell.wsman
    try:
        with pytest.raises(WSManFaultError) as caught:
            pool.shell.receive("stdout", timeout=1)
    finally:
        pool.shell.wsman = former
    return caught.value.code


def test_several_clients_work_at_the_same_time(machine):
    together = threading.Barrier(4, timeout=PATIENCE_S)
    answers = []

    def work(endpoint, number):
        with opened(endpoint) as pool:
            together.wait(PATIENCE_S)
            answers.extend(call(pool, "work", name=f"{number}.{turn}")[0] for turn in range(5))
            together.wait(PATIENCE_S)

    with serve(machine) as endpoint:
        clients = [threading.Thread(target=work, args=(endpoint, number)) for number in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(PATIENCE_S)
    assert (
        sorted(answers) == sorted(machine.work_done) == [f"{number}.{turn}" for number in range(4) for turn in range(5)]
    )


def test_a_stopped_endpoint_cuts_its_clients(machine):
    with serve(machine) as endpoint:
        pool = RunspacePool(connect(endpoint))
        pool.open()
        shell = PowerShell(pool).add_cmdlet("wait_for_stop")
        shell.begin_invoke()
        assert machine.started.wait(PATIENCE_S)
    with pytest.raises(requests.exceptions.ConnectionError):
        shell.end_invoke()


def test_the_benchmark_of_the_wire_runs(tmp_path: Path) -> None:
    with detect(tmp_path) as case:
        case.work()
        case.yardstick()
