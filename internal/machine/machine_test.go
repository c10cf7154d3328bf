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
	}
	m, err := Describe(func(name string) ([]byte, error) { return []byte(files[name]), nil })
	if want := (Machine{CPUModel: "Some CPU @ 2.50GHz", CPUs: 2, Flags: []string{"aes", "avx2"}, Kernel: "6.18.0"}); !reflect.DeepEqual(m, want) || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := Describe(func(string) ([]byte, error) { return nil, os.ErrNotExist }); err == nil {
		t.Error("without /proc there is a machine")
	}
}
