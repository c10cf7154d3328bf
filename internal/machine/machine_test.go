package machine

import (
	"os"
	"reflect"
	"testing"
)

func TestTheMachineIsDescribed(t *testing.T) {
	files := map[string]string{
		"/proc/sys/kernel/osrelease": "6.18.0\n",
		"/proc/cpuinfo":              "processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu avx2 aes hypervisor\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu avx2 aes hypervisor\n",
		"/proc/meminfo":              "MemTotal:       16380044 kB\nMemFree:         1024 kB\n",
	}
	m, err := Describe(func(name string) ([]byte, error) { return []byte(files[name]), nil })
	if want := (Machine{CPUModel: "Some CPU @ 2.50GHz", CPUs: 2, Flags: []string{"aes", "avx2"}, Memory: 16380044 << 10, Kernel: "6.18.0"}); !reflect.DeepEqual(m, want) || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	for _, strange := range []string{"", "MemTotal: much kB\n", "MemTotal: 9223372036854775807 kB\n", "MemTotal: -1 kB\n"} {
		if n := total(strange); n != 0 {
			t.Errorf("%q: %d bytes", strange, n)
		}
	}
	if _, err := Describe(func(string) ([]byte, error) { return nil, os.ErrNotExist }); err == nil {
		t.Error("without /proc there is a machine")
	}
}
