"""schedule_log comes into memory, ahead of time and within bounds."""
