"""Where jobs run: ModelArts, Apulis, Slurm, and the local cloud on this machine.

Begin with the port, `model.ports.Platform`, then `modelarts/platform.py`. Each platform brings a `PlatformKind`
(see `config.settings`): its settings, its section of workload.toml, its checks. `local.py` is ModelArts against a cloud
that it starts itself; `power_file.py` reads the power that nodes drew. The registry names all of them, and nothing else
imports them: engine, reports and commands see only the port.
"""
