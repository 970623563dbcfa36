// What Kubeflow's Spark operator makes of a SparkApplication on standard input, by its own code:
//
//	rules     the keys of sparkConf that its webhook refuses, as JSON (reads nothing)
//	validate  whether its webhook takes the application
//	submit    the same, and then spark-submit as its controller runs it
//
// A refusal ends with 1 and the operator's words on standard error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/kubeflow/spark-operator/v2/api/v1beta2"
	"github.com/kubeflow/spark-operator/v2/internal/controller/sparkapplication"
	"github.com/kubeflow/spark-operator/v2/internal/webhook"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(mode string) error {
	if mode == "rules" {
		return json.NewEncoder(os.Stdout).Encode(webhook.DeniedSparkConfKeys())
	}
	app := &v1beta2.SparkApplication{}
	if err := json.NewDecoder(os.Stdin).Decode(app); err != nil {
		return err
	}
	v1beta2.SetSparkApplicationDefaults(app) // as its mutating webhook does
	ctx := context.Background()
	if _, err := webhook.NewSparkApplicationValidator(nil, false).ValidateCreate(ctx, app); err != nil {
		return err
	}
	if mode == "submit" {
		return (&sparkapplication.SparkSubmitter{}).Submit(ctx, app)
	}
	return nil
}
