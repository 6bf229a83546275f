"""NearID, Table 2: agreement with people on DreamBench++."""
