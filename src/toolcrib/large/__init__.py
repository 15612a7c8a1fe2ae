"""Engines that search more tools than fit in memory."""
