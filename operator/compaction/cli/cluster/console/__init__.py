"""The console: pages in a browser about policies, jobs and catalogs, with the rights of the user who looks."""
