// Phase B, latency: iterations begin at a constant rate, whatever became of those before. One that finds no virtual user
// free is dropped, which makes the measurement invalid.
import { Client, load } from 'k6/x/qtls';

const measured = load();
const client = new Client(measured.client);

export const options = {
  scenarios: {
    latency: {
      executor: 'constant-arrival-rate', rate: measured.rate, timeUnit: '1s', duration: measured.duration,
      preAllocatedVUs: measured.vus, maxVUs: measured.vus, gracefulStop: '1m',
    },
  },
  setupTimeout: measured.maxWait,
};

export function setup() {
  measured.waitForStart();
}

export default function () {
  client[measured.operation](measured.request);
}
