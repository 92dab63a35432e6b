// The section about this device's own key: the request to be enrolled, and whether updates are signed.

import { $, guarded, save, say } from "./dom.js";
import { deviceKeys, publicText, request } from "./identity.js";

export class DeviceView {
  constructor() {
    $("enrolling").addEventListener("submit", (event) => {
      event.preventDefault();
      guarded(() => this.download(), $("enrol"))();
    });
  }

  /** Say whether this device has a key. */
  async show() {
    const keys = await deviceKeys();
    $("device-note").textContent = keys
      ? `Updates are signed by this device's key ${await publicText(keys)}.`
      : "This device has no key, so its updates are not signed. The first request makes one; it never leaves this browser.";
  }

  /** Return the request to be enrolled as `name`. */
  async enrol(name) {
    const asked = await request(name);
    await this.show();
    return asked;
  }

  async download() {
    const name = $("device-name").value;
    save(`${name}.json`, [await this.enrol(name)], "application/json");
    say(`${name}.json: handed to the browser's downloads. The server adds it with: edgefl enroll ${name}.json --keys FILE`);
  }
}
