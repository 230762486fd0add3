// Has something done, and says what became of it.

import { toast } from "./dom.js";

export async function act(live, action, what, done) {
  const answer = await live.act(action, what);
  toast(answer.text, answer.ok ? "good" : "bad");
  if (answer.ok) done?.();
}
