#!/usr/bin/env bash
# Try a wheel in a clean virtual environment: install it over the version before, and see that the history is kept.
#
#   bash .github/release/try_wheel.sh WHEEL [COMMIT BEFORE]
#
# The commit before is by default the last one with the database of version 14; it is built from the git history.
set -euo pipefail
wheel="$(realpath "$1")"
before="${2:-158a52cf}"
root="$(git rev-parse --show-toplevel)"
work="$(mktemp -d)"
children=()
trap 'kill "${children[@]}" 2>/dev/null || true; git -C "$root" worktree remove --force "$work/before" || true; rm -rf "$work"' EXIT
export HOME="$work/home" XDG_DATA_HOME="" XDG_STATE_HOME="" XDG_CONFIG_HOME=""
unset XDG_DATA_HOME XDG_STATE_HOME XDG_CONFIG_HOME
mkdir "$HOME"
git -C "$root" worktree add --quiet --detach "$work/before" "$before"
python3 -m venv "$work/venv"
bin="$work/venv/bin"
"$bin/pip" install --quiet "$work/before"

cat > "$work/server.py" <<'PY'
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        self.answer(json.dumps({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice],
                                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}).encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 17118), Handler).serve_forever()
PY
python3 "$work/server.py" &
children+=($!)

serve_and_ask() {
  "$bin/clairvoyant" serve --backend http://127.0.0.1:17118 --listen 127.0.0.1:17117 &
  local daemon=$!
  children+=("$daemon")
  timeout 60 sh -c 'until curl --fail --silent --output /dev/null http://127.0.0.1:17117/_clairvoyant/health; do sleep 0.2; done'
  curl --fail --silent --output /dev/null http://127.0.0.1:17117/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "m", "messages": [{"role": "user", "content": "Is a whale a mammal?"}]}'
  sleep 1  # the history is written twice a second
  kill "$daemon"
  wait "$daemon"
}

count() { "$bin/clairvoyant" history --json | grep -c '"outcome"'; }

"$bin/clairvoyant" --version
serve_and_ask
[ "$(count)" = 1 ]
"$bin/pip" install --quiet "$wheel"
"$bin/clairvoyant" --version
"$bin/clairvoyant" demo --requests 6 --speed 5000
serve_and_ask
[ "$(count)" = 2 ]
echo "the wheel works, and the history of the version before is kept"
