"""What each script of a resource has before it in the one text that a Linux gets: the agent and its parts."""

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
from winhost.agent.linux_made import *
from winhost.agent.linux_marks import *
from winhost.agent.linux_packages import *
from winhost.agent.linux_ready import *
from winhost.agent.linux_serve import *
from winhost.agent.linux_systemd import *
from winhost.agent.linux_unkept import *
from winhost.agent.linux_wire import *
