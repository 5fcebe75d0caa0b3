"""A real HTTP server on 127.0.0.1 that serves a transformers model with the OpenAI completions protocol."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class Handler(BaseHTTPRequestHandler):
    """Answers /v1/models and /v1/completions by the model, tokenizer and ``echoes`` of its server."""

    def do_GET(self):
        longest = self.server.model.config.max_position_embeddings
        self._answer({"data": [{"id": "tiny", "max_model_len": longest}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(asked)
            choices = [self._complete(asked, prompt) for prompt in asked["prompt"]]
        self._answer({"choices": [{"index": number, **choice} for number, choice in enumerate(choices)]})

    def _complete(self, asked, prompt):
        """One choice: greedy tokens after ``prompt``, or with echo the prompt, one more token and their scores."""
        with torch.no_grad():
            tokens = torch.tensor([prompt])
            if not asked.get("echo"):
                return {"text": self._generate(tokens, asked)}
            logprobs = self.server.model(tokens).logits[0].float().log_softmax(-1)
        scored = [None, *(float(logprobs[place, token]) for place, token in enumerate(prompt[1:]))]
        tops = [None, *({"top": float(row.max())} for row in logprobs)]
        found = {"token_logprobs": [*scored, tops[-1]["top"]], "top_logprobs": tops}
        if not self.server.echoes:
            found = {name: values[-1:] for name, values in found.items()}
        return {"text": self.server.tokenizer.decode([*prompt, int(logprobs[-1].argmax())]), "logprobs": found}

    def _generate(self, tokens, asked):
        mask, new = torch.ones_like(tokens), asked["max_tokens"]
        made = self.server.model.generate(tokens, attention_mask=mask, max_new_tokens=new, do_sample=False)
        text = self.server.tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True)
        for stop in asked.get("stop") or []:
            text = text.split(stop)[0]
        return text

    def _answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(model, tokenizer, *, echoes=True, status=200):
    """The server; ``url`` is where, ``asked`` what it was asked. ``echoes`` False: it scores generated tokens only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.model, server.tokenizer, server.echoes, server.status = model, tokenizer, echoes, status
    server.lock, server.asked = threading.Lock(), []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
