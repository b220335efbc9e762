"""Listeners: functions that are called with messages as they come."""
