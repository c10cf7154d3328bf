// Phase A, capacity: a closed loop. Each virtual user connects again as soon as its last connection has ended.
import { sleep } from 'k6';
import { Client, load } from 'k6/x/qtls';

const measured = load();
const client = new Client(measured.client);

export const options = {
  scenarios: {
    capacity: { executor: 'constant-vus', vus: measured.vus, duration: measured.duration, gracefulStop: '1m' },
  },
  setupTimeout: measured.maxWait,
};

export function setup() {
  measured.waitForStart();
}

export default function () {
  const result = client[measured.operation](measured.request);
  if (!result.ok) {
    sleep(0.1); // a server that refuses everybody at once is no reason to burn the CPU
  }
}
