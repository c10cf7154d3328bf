package benchmark

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// sampledJob has what one pod had used when its window began and ended.
func sampledJob(t *testing.T, before, after dataplane.Usage) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	for which, u := range map[string]dataplane.Usage{v1alpha1.AnnotationUsageBegin: before, v1alpha1.AnnotationUsageEnd: after} {
		text, err := samples{"a": {Name: "web-a", Usage: u}}.text()
		if err != nil {
			t.Fatal(err)
		}
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, text)
	}
	return job
}

// What the kernel tells of a CPU that waits for I/O may fall again, and be told twice.
func TestAMachineIsIdleForAShareOfItsTime(t *testing.T) {
	for _, c := range []struct {
		idle int64 // of 100 more
		want float64
	}{{25, .25}, {-3, 0}, {101, 1}} {
		before := dataplane.Usage{Worker: "8@1", Time: 1, MachineTotal: 1000, MachineIdle: 500}
		after := before
		after.Time, after.MachineTotal, after.MachineIdle = 2, 1100, 500+c.idle
		u := usageOf(sampledJob(t, before, after), &v1alpha1.QTLSGateway{})
		if u == nil || u.MachineIdle == nil || *u.MachineIdle != c.want {
			t.Errorf("idle for %d of 100: %+v, want %v", c.idle, u, c.want)
		}
	}
}
