"""What the pods of `stratlab check` run: plain Python, so that an older image does too. Facts come last."""

PLENTY_S = 90  # a network file system may show a new file late

# argv: writer|reader, a folder on the volume that only this check uses. Each waits for the other's file.
SHARE = f"""
import json, os, shutil, sys, time
role, folder = sys.argv[1:]
mine, theirs = os.path.join(folder, role), os.path.join(folder, {{"writer": "reader", "reader": "writer"}}[role])
began = time.monotonic()
facts = {{"node": os.environ["NODE_NAME"], "user": os.getuid(), "seen_after_s": None}}
def wait_for(path):
    while not os.path.exists(path):
        if time.monotonic() - began > {PLENTY_S}:
            return False
        os.listdir(os.path.dirname(os.path.dirname(path)))
        time.sleep(0.2)
    return True
try:
    if role == "writer":
        os.makedirs(folder)
        with open(mine, "w") as file:
            file.write(folder)
        wait_for(theirs)
        shutil.rmtree(folder)
    elif wait_for(theirs):
        seen = time.monotonic()
        with open(theirs) as file:
            facts["read"] = file.read() == folder
        with open(mine, "w") as file:
            file.write("seen")
        facts["seen_after_s"] = seen - began
    root = os.statvfs(os.path.dirname(folder))
    facts["free_bytes"] = root.f_bavail * root.f_frsize
    shm = os.statvfs("/dev/shm")
    facts["shm_bytes"] = shm.f_blocks * shm.f_frsize
except OSError as failure:
    facts["error"] = str(failure)
print("facts", json.dumps(facts))
"""

# argv: the tracking URI. An API call: /health says 200 to a Host header for which every call is refused. Redirects are
# not followed, as the trainer does not; `location` is where one leads.
CALL_MLFLOW = """
import json, os, ssl, sys, urllib.error, urllib.parse, urllib.request
context = ssl.create_default_context()
if os.path.isfile(os.environ.get("STRATLAB_CA_FILE", "")):
    context.load_verify_locations(os.environ["STRATLAB_CA_FILE"])
class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *redirect):
        return None
facts = {"status": None, "text": "", "location": None}
url = sys.argv[1].rstrip("/") + "/api/2.0/mlflow/experiments/search"
opener = urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=context))
request = urllib.request.Request(url, b'{"max_results": 1}', {"Content-Type": "application/json"})
try:
    with opener.open(request, timeout=20) as answer:
        facts["status"], facts["text"] = answer.status, answer.read(300).decode(errors="replace")
except urllib.error.HTTPError as failure:
    facts["status"], facts["text"] = failure.code, failure.read(300).decode(errors="replace")
    if 300 <= failure.code < 400 and failure.headers.get("Location"):
        facts["location"] = urllib.parse.urljoin(url, failure.headers["Location"])
except (OSError, ValueError) as failure:
    facts["text"] = str(failure)
print("facts", json.dumps(facts))
"""
