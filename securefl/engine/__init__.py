"""The engines that run cohort queries: they move encoded messages between the parties' state machines."""
