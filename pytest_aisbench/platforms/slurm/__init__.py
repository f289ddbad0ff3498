"""The platform Slurm: jobs run on the nodes of a cluster, and reach our files by a folder that all nodes mount.

Begin with `platform.py`. `settings.py` reads its tables of aisbench.toml and workload.toml, `script.py` renders the
options of sbatch and the script of a job, `commands.py` runs Slurm's commands and reads what they print, `states.py`
makes a Phase of what Slurm and the job's own files say. The registry imports `settings.py`; nothing else outside
imports this package.
"""
