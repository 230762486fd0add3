"""The cockpit: a page that shows a group to people, live, and lets those who may act on it.

Why a process beside the node, and an ordinary session: whatever a browser does, or a defect of this code, can't hurt
the node, and what the page can show is what the access rules let its user see.

Rules:
- One thread looks at the node (`observing`), one reads samples (`sampling`); the event loop serves browsers and waits
  for neither.
- Memory is bounded, whatever browsers do and however long: histories have a length, and nothing waits for a browser
  that doesn't read. It gets the newest when it reads again.
- Everything that is secret goes over the WebSocket, behind the token or a certificate (`entry`); files are the same for
  everybody.
- Nothing is loaded from other hosts; the browser is told to refuse it (`serving`).
"""
