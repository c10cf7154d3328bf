package benchmark

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// A pod that serves nobody for a while is a replica less, though it runs on.
func TestAReplicaThatWasNotReadyAllTheTimeIsDisturbed(t *testing.T) {
	minute := func(n int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 6, 1, 12, n, 0, 0, time.UTC))
	}
	condition := func(status corev1.ConditionStatus, since metav1.Time) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: status, LastTransitionTime: since}}
	}
	ready, not := func(since metav1.Time) []corev1.PodCondition { return condition(corev1.ConditionTrue, since) },
		func(since metav1.Time) []corev1.PodCondition { return condition(corev1.ConditionFalse, since) }
	for name, c := range map[string]struct {
		begin, end []corev1.PodCondition
		want       bool
	}{
		"ready all the time":       {ready(minute(0)), ready(minute(0)), false},
		"not at the begin":         {not(minute(0)), ready(minute(2)), true},
		"not at the end":           {ready(minute(0)), not(minute(2)), true},
		"not in between":           {ready(minute(0)), ready(minute(2)), true},
		"never":                    {not(minute(0)), not(minute(0)), true},
		"nobody has said that yet": {nil, nil, true},
	} {
		at := func(seconds int64, conditions []corev1.PodCondition) sample {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, Status: corev1.PodStatus{Conditions: conditions}}
			return sampleOf(pod, dataplane.Usage{Worker: "8@1", Time: seconds * int64(time.Second), CPU: seconds * int64(time.Millisecond), MachineTotal: 200 * seconds, MachineIdle: 100 * seconds})
		}
		u := usageOf(sampledJob(t, at(10, c.begin), at(20, c.end)), &v1alpha1.QTLSGateway{})
		if u == nil || len(u.Replicas) != 1 || u.MachineIdle == nil {
			t.Fatalf("%s: not observed: %+v", name, u)
		}
		if one := u.Replicas[0]; one.Disturbed != c.want || one.CPU != 10*time.Millisecond {
			t.Errorf("%s: disturbed: %v, want %v; %v of CPU time, want 10 ms", name, one.Disturbed, c.want, one.CPU)
		}
	}
}
