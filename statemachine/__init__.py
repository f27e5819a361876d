"""The lifecycle as data: tables, their laws, and their pictures. Attrs and the standard library only.

Read `rows.py` (what a row is), then `request.py` (the machine that everything else serves).
"""
