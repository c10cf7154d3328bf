package agent

import (
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
)

func TestTheMachinesTimeIsThatOfAllItsCPUs(t *testing.T) {
	const stat = "cpu  100 20 30 1000 40 5 6 7 50 2\ncpu0 50 10 15 500 20 2 3 3 25 1\nintr 1 2 3\n"
	total, idle, err := parseStat(stat)
	if total != 1208 || idle != 1040 || err != nil { // a guest's time is in user already
		t.Errorf("%d, %d, %v", total, idle, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3\n", "cpu 1 2 3 x 5 6 7 8\n"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	here, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	if total, idle, err := parseStat(string(here)); err != nil || total <= 0 || idle < 0 || idle > total {
		t.Errorf("this machine: %d, %d, %v", total, idle, err)
	}
}

func TestTheMachineIsDescribed(t *testing.T) {
	files := map[string]string{
		"/proc/sys/kernel/osrelease": "6.18.0\n",
		"/proc/cpuinfo":              "processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu avx2 aes hypervisor\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu avx2 aes hypervisor\n",
	}
	m, err := machineOf(func(name string) ([]byte, error) { return []byte(files[name]), nil })
	if want := (dataplane.Machine{CPUModel: "Some CPU @ 2.50GHz", CPUs: 2, Flags: []string{"aes", "avx2"}, Kernel: "6.18.0"}); !reflect.DeepEqual(m, want) || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := machineOf(func(string) ([]byte, error) { return nil, os.ErrNotExist }); err == nil {
		t.Error("without /proc there is a machine")
	}
}

func TestWithoutHAProxyThereIsNoUsage(t *testing.T) {
	w := httptest.NewRecorder()
	(&Agent{Options: Options{Metrics: NewMetrics()}}).usage(w, httptest.NewRequest(http.MethodGet, "/v1/usage", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
