{{- /*
Prints a table in TOML. Numbers of values are floats in Helm, so toToml would print 32.0. JSON texts, numbers and lists are
valid in TOML.

path: name of the table, empty for the root
table: settings; null means that a setting has its default
*/ -}}
{{- define "evenkeel.toml" -}}
{{- $path := .path -}}
{{- $table := .table -}}
{{- $tables := dict -}}
{{- $lists := dict -}}
{{- range $key := keys $table | sortAlpha -}}
{{- $value := get $table $key -}}
{{- $name := ternary $key (toRawJson $key) (regexMatch "^[A-Za-z0-9_-]+$" $key) -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $tables $name $value -}}
{{- else if and (kindIs "slice" $value) $value (kindIs "map" (first $value)) -}}
{{- $_ := set $lists $name $value -}}
{{- else if not (kindIs "invalid" $value) }}
{{ $name }} = {{ toRawJson $value }}
{{- end -}}
{{- end -}}
{{- range $name := keys $tables | sortAlpha -}}
{{- $full := ternary (printf "%s.%s" $path $name) $name (ne $path "") }}

[{{ $full }}]
{{- include "evenkeel.toml" (dict "path" $full "table" (get $tables $name)) -}}
{{- end -}}
{{- range $name := keys $lists | sortAlpha -}}
{{- $full := ternary (printf "%s.%s" $path $name) $name (ne $path "") -}}
{{- range $entry := get $lists $name }}

[[{{ $full }}]]
{{- include "evenkeel.toml" (dict "path" $full "table" $entry) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "evenkeel.listen" -}}
{{- $address := .root.Values.listenAddress -}}
{{- if contains ":" $address }}[{{ $address }}]{{ else }}{{ $address }}{{ end }}:{{ .port -}}
{{- end -}}

{{- /* TLS of a listener, as settings in YAML. */ -}}
{{- define "evenkeel.tls" -}}
{{- if eq .listener.tls "secret" }}
certificate: /etc/evenkeel/tls/{{ .name }}/tls.crt
key: /etc/evenkeel/tls/{{ .name }}/tls.key
{{- else if eq .listener.tls "none" }}
tls: false
{{- else if ne .name "southbound" }}
tls: true
{{- end }}
{{- end -}}

{{- /* Names of a Service in the cluster. */ -}}
{{- define "evenkeel.serviceNames" -}}
{{- $name := printf "%s-%s" (include "evenkeel.fullname" .root) .service -}}
{{- toJson (list $name (printf "%s.%s" $name .root.Release.Namespace) (printf "%s.%s.svc" $name .root.Release.Namespace)) -}}
{{- end -}}

{{- /* The settings of evenkeeld in YAML. */ -}}
{{- define "evenkeel.settings" -}}
data_dir: /var/lib/evenkeel/server
log:
  format: json
{{- if .Values.database.url }}
database:
  url: {{ .Values.database.url | quote }}
  {{- if .Values.database.passwordSecret.name }}
  password_file: /etc/evenkeel/database/password
  {{- end }}
{{- end }}
rest:
  listen: {{ include "evenkeel.listen" (dict "root" . "port" 8080) | quote }}
  {{- include "evenkeel.tls" (dict "name" "rest" "listener" .Values.rest) | indent 2 }}
  {{- $names := fromJsonArray (include "evenkeel.serviceNames" (dict "root" . "service" "rest")) }}
  {{- if eq .Values.rest.tls "secret" }}{{ $names = list }}{{ end }}
  server_names: {{ concat .Values.rest.serverNames $names | toJson }}
southbound:
  listen: {{ include "evenkeel.listen" (dict "root" . "port" 50002) | quote }}
  {{- include "evenkeel.tls" (dict "name" "southbound" "listener" .Values.southbound) | indent 2 }}
  {{- if and (eq .Values.southbound.tls "secret") .Values.southbound.tlsSecretCa }}
  ca: /etc/evenkeel/tls/southbound/ca.crt
  {{- end }}
  {{- $names = concat (fromJsonArray (include "evenkeel.serviceNames" (dict "root" . "service" "southbound"))) (fromJsonArray (include "evenkeel.serviceNames" (dict "root" . "service" "files"))) }}
  {{- if eq .Values.southbound.tls "secret" }}{{ $names = list }}{{ end }}
  server_names: {{ concat .Values.southbound.serverNames $names | toJson }}
admin:
  listen: {{ include "evenkeel.listen" (dict "root" . "port" 9464) | quote }}
  tls: {{ .Values.admin.tls }}
  {{- if .Values.admin.tls }}
  server_names: {{ include "evenkeel.serviceNames" (dict "root" . "service" "metrics") }}
  {{- end }}
auth:
  keys: /etc/evenkeel/keys
  ca: /etc/evenkeel/ca
  # This token is in the pod that starts first. NOTES.txt creates another one.
  first_token_ttl: 1m
{{- if .Values.files.enabled }}
files:
  listen: {{ include "evenkeel.listen" (dict "root" . "port" 8443) | quote }}
  dir: /var/lib/evenkeel/files/cache
{{- end }}
{{- end -}}

{{- /* evenkeeld.toml: the settings of the chart, and those in config. */ -}}
{{- define "evenkeel.configFile" -}}
{{- $own := include "evenkeel.settings" . | fromYaml -}}
{{- include "evenkeel.toml" (dict "path" "" "table" (mergeOverwrite $own (deepCopy .Values.config))) | trim }}
{{ end -}}
