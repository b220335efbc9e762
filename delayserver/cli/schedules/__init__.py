"""Commands about schedules."""
