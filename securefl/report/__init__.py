"""Reports of a study: tables, figures and the HTML page, made from numbers only."""
