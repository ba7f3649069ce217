"""What has been measured of this machine and its models, and what its traffic was: one SQLite file.

`records` is standard library only and may be imported by anyone; the rest opens files.
"""
