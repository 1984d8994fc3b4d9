"""`relay rotate`: changes a source's secret without losing events signed with the new one."""
