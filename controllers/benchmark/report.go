package benchmark

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
)

func reportName(b *v1alpha1.QTLSBenchmark) string { return b.Name + "-report" }

// writeReport of what was measured, if anything was.
func (r *Reconciler) writeReport(ctx context.Context, s state) error {
	points, err := pointsOf(s.benchmark, s.plan, s.records)
	if err != nil || len(points) == 0 {
		return err
	}
	text, err := yaml.Marshal(points)
	if err != nil {
		return err
	}
	return r.apply(ctx, s.benchmark, &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: generator.Meta(s.benchmark, reportName(s.benchmark)),
		Data:       map[string]string{"points.yaml": string(text)},
	})
}
