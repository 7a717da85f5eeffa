# Part of the agent: the imports of each script, that is, all parts before it in the text, and modules of Python.
from __future__ import annotations

import base64 as base64
import json as json
import os as os
import re as re
import shutil as shutil
import stat as stat
import sys as sys
import time as time
from contextlib import contextmanager as contextmanager
from contextlib import suppress as suppress
from functools import partial as partial
from pathlib import Path as Path
from typing import TYPE_CHECKING as TYPE_CHECKING
from typing import Any as Any
from typing import NamedTuple as NamedTuple

from winhost.agent.linux_accounts import *
from winhost.agent.linux_agent import *
from winhost.agent.linux_calls import *
from winhost.agent.linux_checks import *
from winhost.agent.linux_cluster import *
from winhost.agent.linux_disks import *
from winhost.agent.linux_download import *
from winhost.agent.linux_engines import *
from winhost.agent.linux_files import *
from winhost.agent.linux_gpus import *
from winhost.agent.linux_marks import *
from winhost.agent.linux_packages import *
from winhost.agent.linux_ready import *
from winhost.agent.linux_records import *
from winhost.agent.linux_revocable import *
from winhost.agent.linux_serve import *
from winhost.agent.linux_systemd import *
from winhost.agent.linux_wire import *

if TYPE_CHECKING:
    from collections.abc import Iterable as Iterable
    from collections.abc import Iterator as Iterator
    from typing import BinaryIO as BinaryIO
    from typing import ContextManager as ContextManager
