"""Submit a job to FLARE and wait for its end: `flare_job.py ADMIN_KIT USER JOB CLIENTS`; the last line tells of it."""

from __future__ import annotations

import json
import sys
import time

from nvflare.fuel.flare_api.flare_api import new_secure_session

if __name__ == "__main__":
    kit, user, job, clients = sys.argv[1:]
    for _attempt in range(100):
        try:
            session = new_secure_session(user, kit)
            break
        except Exception:
            time.sleep(0.2)
    while len(session.get_system_info().client_info) < int(clients):
        time.sleep(0.1)
    number = session.submit_job(job)
    session.monitor_job(number, timeout=120, poll_interval=0.3)
    status, folder = session.get_job_meta(number)["status"], session.download_job_result(number)
    session.close()
    sys.stdout.write(json.dumps({"status": status, "folder": folder}) + "\n")
