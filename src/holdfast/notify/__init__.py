"""Notifications: tell people and other systems when a task needs attention.

    holdfast.Worker(store, notify=[notify.Webhook("https://ops.example/hook", secret=...)])

Workers read the events of tasks and deliver a notification for each question, failure, step in
doubt, stuck task and exceeded budget: at least once, in order for each task. A notification has no
content unless the hook asks for it.
"""

from __future__ import annotations

from .find import KINDS, Notification
from .hooks import Callback, Command, DeliveryFailed, Hook, Webhook, verify_webhook
from .listing import UndeliveredNotification
from .notifier import deliver_due

__all__ = [
    "KINDS",
    "Callback",
    "Command",
    "DeliveryFailed",
    "Hook",
    "Notification",
    "UndeliveredNotification",
    "Webhook",
    "deliver_due",
    "verify_webhook",
]
