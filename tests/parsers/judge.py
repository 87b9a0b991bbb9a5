# Reads lines in hexadecimal and says of each whether some reader takes it for a tools/call:
# Python's own parser on bytes and on text, the last or the first of equal members, names and
# methods with or without regard to case and space.
import json
import sys

class Members(list):
    pass

def texts(raw):
    yield raw
    yield raw.decode("utf-8", "replace")
    yield raw.decode("utf-8", "surrogateescape")
    yield raw.decode("utf-8-sig", "replace")

def is_call(value):
    if isinstance(value, Members):
        return any(
            isinstance(name, str)
            and name.lower() == "method"
            and isinstance(method, str)
            and method.strip().lower() == "tools/call"
            for name, method in value
        )
    return isinstance(value, list) and any(is_call(one) for one in value)

sys.setrecursionlimit(10000)
for line in sys.stdin:
    raw = bytes.fromhex(line.strip())
    found = False
    for text in texts(raw):
        try:
            found = found or is_call(json.loads(text, object_pairs_hook=Members))
        except (ValueError, RecursionError):
            # A lenient reader takes the first value and leaves the rest.
            try:
                if isinstance(text, str):
                    decoder = json.JSONDecoder(object_pairs_hook=Members)
                    found = found or is_call(decoder.raw_decode(text.lstrip())[0])
            except (ValueError, RecursionError):
                pass
    print("1" if found else "0")
