package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-viper/encoding/javaproperties"
	"github.com/spf13/cast"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/barnabas-mq/barnabas/node/config"
)

// noDelimiter keeps viper and its codec from taking dots apart: with ".", broker.id is lost beside
// broker.id.generation.enable.
const noDelimiter = "\x00"

// processEnv are BARNABAS_ variables that are not configuration keys.
var processEnv = map[string]bool{"BARNABAS_CONFIG": true, "BARNABAS_LOG_LEVEL": true, "BARNABAS_LOG_FORMAT": true, "BARNABAS_TOOLS": true}

// serviceLink matches what Kubernetes sets in every pod when a service is called barnabas.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)`)

// addKeyFlags gives every configuration key a flag of its name. Only the common ones are shown by --help.
func addKeyFlags(f *pflag.FlagSet) {
	common := map[string]bool{"node.id": true, "log.dirs": true, "listeners": true, "advertised.listeners": true,
		"cluster.port": true, "zookeeper.port": true, "admin.port": true}
	for _, k := range config.Keys() {
		f.String(k.Name, "", k.Help)
		if !common[k.Name] {
			_ = f.MarkHidden(k.Name) // the flag was added in the line above
		}
	}
	f.String("join", "", "cluster address (host:7946) of a node to join through; barnabas.join")
}

// load gathers the values of file, environment and flags; the later wins.
func load(file string, environ []string, flags *pflag.FlagSet, overrides []string) (map[string]string, error) {
	values := map[string]string{}
	if file != "" {
		var err error
		if values, err = loadFile(file); err != nil {
			return nil, err
		}
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(noDelimiter))
	known := map[string]bool{}
	for _, k := range config.Keys() {
		known[k.Env] = true
		if isServiceLink(k.Env, os.Getenv(k.Env)) {
			continue
		}
		if err := v.BindEnv(k.Name, k.Env); err != nil {
			return nil, err
		}
		if err := v.BindPFlag(k.Name, flags.Lookup(k.Name)); err != nil {
			return nil, err
		}
	}
	for _, k := range v.AllKeys() {
		if v.IsSet(k) {
			values[k] = v.GetString(k)
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, config.EnvPrefix) && !known[name] && !processEnv[name] && !isServiceLink(name, value) {
			values[name] = value // unknown: config names it in the warning
		}
	}
	for _, kv := range overrides {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, fmt.Errorf("--override %q is not key=value", kv)
		}
		values[strings.ToLower(strings.TrimSpace(key))] = value
	}
	if join, err := flags.GetString("join"); err == nil && join != "" {
		values["barnabas.join"] = join
	}
	return values, nil
}

func isServiceLink(name, value string) bool {
	return serviceLink.MatchString(name) || strings.HasPrefix(value, "tcp://")
}

// loadFile reads .yaml and .yml as YAML and everything else as Java properties.
func loadFile(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	kind := "properties"
	switch strings.ToLower(filepath.Ext(file)) {
	case ".yaml", ".yml":
		kind = "yaml"
	default:
		if err := config.CheckText(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	codecs := viper.NewCodecRegistry()
	if err := codecs.RegisterCodec("properties", &javaproperties.Codec{KeyDelimiter: noDelimiter}); err != nil {
		return nil, err
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(noDelimiter), viper.WithCodecRegistry(codecs))
	v.SetConfigType(kind)
	if err := v.ReadConfig(strings.NewReader(string(text))); err != nil {
		return nil, fmt.Errorf("%s is not valid %s: %w", file, kind, err)
	}
	values := map[string]string{}
	if err := flatten(values, "", v.AllSettings()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return values, nil
}

// flatten joins the names of nested maps with dots and the items of lists with commas: `log: {dirs: [/a]}` is log.dirs=/a.
func flatten(into map[string]string, prefix string, node map[string]any) error {
	for k, v := range node {
		key := prefix + k
		switch v := v.(type) {
		case map[string]any:
			if err := flatten(into, key+".", v); err != nil {
				return err
			}
		case []any:
			items := make([]string, len(v))
			for i, item := range v {
				text, err := cast.ToStringE(item)
				if err != nil {
					return fmt.Errorf("%s: item %d is not a plain value", key, i+1)
				}
				items[i] = text
			}
			into[key] = strings.Join(items, ",")
		default:
			text, err := cast.ToStringE(v)
			if err != nil {
				return fmt.Errorf("%s is not a plain value", key)
			}
			into[key] = text
		}
	}
	return nil
}
