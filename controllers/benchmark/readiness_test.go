package benchmark

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// A pod that serves nobody for a while is a replica less, though it runs on.
func TestAReplicaThatWasNotReadyAllTheTimeIsDisturbed(t *testing.T) {
	at := func(minute int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 6, 1, 12, minute, 0, 0, time.UTC))
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
		"ready all the time":       {ready(at(0)), ready(at(0)), false},
		"not at the begin":         {not(at(0)), ready(at(2)), true},
		"not at the end":           {ready(at(0)), not(at(2)), true},
		"not in between":           {ready(at(0)), ready(at(2)), true},
		"never":                    {not(at(0)), not(at(0)), true},
		"nobody has said that yet": {nil, nil, true},
	} {
		job := &batchv1.Job{}
		for i, which := range []string{v1alpha1.AnnotationUsageBegin, v1alpha1.AnnotationUsageEnd} {
			pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: [][]corev1.PodCondition{c.begin, c.end}[i]}}
			seconds := int64(10 * (i + 1))
			text, err := samples{"a": {Name: "web-1", ReadySince: readySince(pod), Usage: dataplane.Usage{
				Worker: "8@1", Time: seconds * int64(time.Second), CPU: seconds * int64(time.Millisecond), MachineTotal: 200 * seconds, MachineIdle: 100 * seconds}}}.text()
			if err != nil {
				t.Fatal(err)
			}
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, text)
		}
		u := usageOf(job, &v1alpha1.QTLSGateway{})
		if u == nil || len(u.Replicas) != 1 || u.MachineIdle == nil {
			t.Fatalf("%s: not observed: %+v", name, u)
		}
		if one := u.Replicas[0]; one.Disturbed != c.want || one.CPU != 10*time.Millisecond {
			t.Errorf("%s: disturbed: %v, want %v; %v of CPU time, want 10 ms", name, one.Disturbed, c.want, one.CPU)
		}
	}
}
