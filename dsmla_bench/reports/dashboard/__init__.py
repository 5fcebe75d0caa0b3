"""Trends of a history as static pages: open index.html, there is no server and no network.

    site.py     writes the folder
    figures.py  trends → the plain data that the pages read
    pages/      the pages themselves, which hold no data: index.html, its style, and scripts of one subject each

A site is

    index.html, *.css, *.js        copied from pages/; plotly.min.js is plotly's own
    dashboard-data/catalogue.js    every row: what it is about, its latest figures and changes; and the runs
    dashboard-data/<table>-<n>.js  all figures of one row, loaded when it is shown

What runs say of themselves goes into the data alone, as JSON, and from there into text, never into markup. The pages'
content security policy forbids whatever is not one of their own files.
"""
