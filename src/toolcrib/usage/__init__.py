"""What a gateway was used for: daily counts by tool and server, and searches that found nothing.

Counts have no caller, no arguments and no results. The words of searches are kept only if the settings say so.
"""
