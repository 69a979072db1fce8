"""Parts of clients and servers hold no tests, and import frameworks that are not everywhere."""

collect_ignore = ["flower_apps.py", "nvflare_parts.py"]
