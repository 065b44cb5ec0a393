"""Backups of a cluster: snapshots of its nodes in a store of backups, and their restoration into any cluster."""

from __future__ import annotations

from chronotile_tools.ops.backups.jobs import Fetch, Send
from chronotile_tools.ops.backups.making import Backup
from chronotile_tools.ops.backups.manifests import Manifest
from chronotile_tools.ops.backups.restoring import Restore
from chronotile_tools.ops.backups.stores import Store

__all__ = ["Backup", "Fetch", "Manifest", "Restore", "Send", "Store"]
