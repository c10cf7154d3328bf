package runtime

import (
	"errors"
	"testing"
)

// A worker that is throttled takes seconds for each answer.
func TestAWorkersUsageIsOneAnswer(t *testing.T) {
	l := listen(t, func(string) string {
		return "Version: 3.2.26\nPid: 8\nStart_time_sec: 1700000000\nCurrConns: 7\nCumSslConns: 1234\n\n" + threads
	})
	info, used, err := (Admin{l.Socket}).Usage(t.Context())
	if err != nil || info.PID != 8 || info.Started != 1700000000 || info.Connections != 7 || info.TLSConnections != 1234 || used != 26969920+175099 {
		t.Errorf("%+v, %d, %v", info, used, err)
	}
	if len(l.told) != 1 || l.told[0] != "show info;show threads\n" {
		t.Errorf("told %q", l.told)
	}
}

const threads = `* Thread 1 : id=0x7f3d4be54400 act=1 glob=0 wq=1 rq=0 tl=0 tlsz=0 rqsz=0
      1/1    loops=4 ctxsw=11 stuck=0 prof=0 harmless=0 isolated=0
             cpu_ns: poll=26943882 now=26969920 diff=26038
             curr_task=0x7f3d49b482c0 (task) calls=2 last=0
               fct=0x7f3d4c2f7d10(task_process_applet) ctx=0x7f3d49b72780
             call trace(13):
             | 0x7f3d4c2d88e4 <00 00 00 e8 1c 10 db ff]: ha_dump_backtrace+0x84/0x40f > main-0x840
  Thread 2 : id=0x7f3d4abff6c0 act=0 glob=0 wq=0 rq=0 tl=0 tlsz=0 rqsz=0
      1/2    loops=0 ctxsw=0 stuck=0 prof=0 harmless=1 isolated=0
             cpu_ns: poll=30833 now=175099 diff=144266
             curr_task=0

`

func TestTheCPUTimeOfAWorkerIsThatOfItsThreads(t *testing.T) {
	if got, err := parseThreads(threads); err != nil || got != 26969920+175099 {
		t.Errorf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "Unknown command\n", "  cpu_ns: poll=1 now=99999999999999999999 diff=0\n"} {
		if _, err := parseThreads(bad); !errors.Is(err, errUnparsed) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
