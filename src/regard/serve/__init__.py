"""Models behind HTTP: requests are worked on together as they arrive, which never changes an answer.

limits.py   what one request and one server may ask for
jobs.py     a request as work: rows that are written step by step, or inputs that are read at once
engine.py   a thread for each model, which batches jobs continuously; knows nothing of HTTP
metrics.py  what happened, in Prometheus' text format
bodies.py   what is sent and what comes back, for the OpenAPI description
jobs_api.py an endpoint for each job: /translate, /generate, /fill, /classify, /tag, /embed, /caption ...
views.py    what can be seen of a model, as plain values
look_api.py endpoints for that: /look/tokens, /look/next, /look/attention, /look/trace ...
page_api.py the page at /, whose files are in page/
openai.py   /v1/completions and /v1/chat/completions, as OpenAI's clients expect them
app.py      the application: models, keys, limits, errors, health
run.py      the server process: address, signals, draining
"""
