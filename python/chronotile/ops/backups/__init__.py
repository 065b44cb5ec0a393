"""Backups of a cluster: snapshots of its nodes in a store of backups, and their restoration into any cluster."""

from __future__ import annotations

from chronotile.ops.backups.jobs import Fetch, Send
from chronotile.ops.backups.making import Backup
from chronotile.ops.backups.manifests import Manifest
from chronotile.ops.backups.restoring import Restore
from chronotile.ops.backups.stores import Store

__all__ = ["Backup", "Fetch", "Manifest", "Restore", "Send", "Store"]
