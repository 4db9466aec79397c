"""The shapes in regard.nn's signatures are checked as its functions are called: by jaxtyping's import hook, sparingly.

A check takes longer than what most of these functions do at a test's sizes, and a training or a search calls the same
few of them over and over. So a test checks the first calls of each, and begins anew; what a call beyond these could do
otherwise, a smaller test of its own does first.
"""

import functools
import types
from collections import Counter

import jaxtyping

CALLS = 17  # of each function in each test

_called: Counter[types.CodeType] = Counter()
begin_anew = _called.clear


def install():
    """Before regard.nn is imported."""
    everywhere = jaxtyping.jaxtyped

    def sparing(thing=None, *, typechecker):
        if thing is None:
            return functools.partial(sparing, typechecker=typechecker)
        if not isinstance(thing, types.FunctionType):
            return everywhere(thing, typechecker=typechecker)
        code, checked = thing.__code__, None

        @functools.wraps(thing)
        def call(*args, **kwargs):
            nonlocal checked
            if _called[code] == CALLS:
                return thing(*args, **kwargs)
            _called[code] += 1
            # Only now: a function within another is made anew whenever the other is called.
            checked = checked or everywhere(thing, typechecker=typechecker)
            return checked(*args, **kwargs)

        return call

    jaxtyping.jaxtyped = sparing  # which the hook's decorators look up there
    jaxtyping.install_import_hook("regard.nn", "beartype.beartype")
