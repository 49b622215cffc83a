"""The cases of `unseen.py`, which has a format of its own."""

import functools

import program
import unseen

for case in unseen.CASES.values():

    def build(is_faulty: bool, case: unseen.Case = case) -> program.Program:
        made = case.build(is_faulty, 0)
        return program.Program(made.model, made.loss, made.loader, made.optimizer, made.score)

    program.FAULTS[case.name] = program.Fault(case.name, case.what, build, case.rules, case.layers, fails=False, steps=0)


def _sound(name: str) -> program.Program:
    made = unseen.HEALTHY[name](0)
    return program.Program(made.model, made.loss, made.loader, made.optimizer, made.score)


for name in unseen.HEALTHY:
    program.SOUND[name] = program.Sound(name, name, functools.partial(_sound, name), trained=0, steps=0, least=0.0)
